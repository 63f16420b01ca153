"""What models before transformers do when they answer, bare: a dot product, a forest, a LeNet.

Each module is the inference of one kind in a few lines of numpy. `digits` holds parameters that
were trained with scikit-learn and torch on 8 x 8 pictures of digits, and pictures to ask about.
"""
