"""What a linear model reaches on the same split: character 1-3-gram TF-IDF with logistic regression."""

from collections.abc import Sequence

from data import Review


def predict(train: Sequence[Review], *others: Sequence[Review]) -> list[list[int]]:
    """Fits on `train` and returns the predicted labels of each of `others`."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    vectorizer = TfidfVectorizer(analyzer="char", ngram_range=(1, 3), min_df=2, sublinear_tf=True)
    features = vectorizer.fit_transform([review.text for review in train])
    classifier = LogisticRegression(C=10, max_iter=1000).fit(features, [review.label for review in train])
    return [classifier.predict(vectorizer.transform([r.text for r in reviews])).tolist() for reviews in others]
